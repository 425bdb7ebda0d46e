"""The scripts that have shells complete command lines of drf, and where each shell looks for them.

They run `drf _complete`: see `drfd_cli.words.complete`.
"""

from __future__ import annotations

_BASH = r"""# Completion of drf in bash. Written by `drf completion bash`.
_drf_completion() {
    local program=${COMP_WORDS[0]} line value cur=${COMP_WORDS[COMP_CWORD]} values=() texts=()
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :files)
                compopt -o filenames 2>/dev/null
                mapfile -t COMPREPLY < <(compgen -f -- "$cur")
                return ;;
            :command*)
                if declare -F _command_offset >/dev/null; then
                    _command_offset "${line#:command }"
                elif [ "$COMP_CWORD" -eq "${line#:command }" ]; then
                    mapfile -t COMPREPLY < <(compgen -c -- "$cur")
                else
                    compopt -o filenames 2>/dev/null
                    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
                fi
                return ;;
        esac
        printf -v value %q "${line%%$'\t'*}"
        values+=("$value")
        case $line in
            *$'\t'*) texts+=("${line%%$'\t'*}  (${line#*$'\t'})") ;;
            *) texts+=("$line") ;;
        esac
    done < <("$program" _complete bash "$COMP_CWORD" "${COMP_WORDS[@]}" 2>/dev/null)
    if [ "${COMP_TYPE:-9}" = 63 ] && [ ${#values[@]} -gt 1 ]; then
        # A list is shown, and nothing is inserted.
        COMPREPLY=("${texts[@]}")
    else
        COMPREPLY=("${values[@]}")
    fi
    compopt -o nosort 2>/dev/null
    return 0
}
complete -F _drf_completion drf
"""

_ZSH = r"""#compdef drf
# Completion of drf in zsh. Written by `drf completion zsh`.
_drf() {
    local line
    local -a lines values
    lines=("${(@f)$("${words[1]}" _complete zsh $((CURRENT - 1)) "${(@Q)words}" 2>/dev/null)}")
    if [[ $lines[1] == :files ]]; then
        _files
        return
    elif [[ $lines[1] == :command* ]]; then
        local -i first=${lines[1]#:command }
        shift $first words
        (( CURRENT -= first ))
        _normal
        return
    fi
    for line in $lines; do
        if [[ $line == *$'\t'* ]]; then
            values+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        elif [[ -n $line ]]; then
            values+=("${line//:/\\:}")
        fi
    done
    (( $#values )) && _describe -V drf values
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _drf "$@"
else
    compdef _drf drf
fi
"""

_FISH = r"""# Completion of drf in fish. Written by `drf completion fish`.
function __drf_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines ($words[1] _complete fish (count $words) $words "$current" 2>/dev/null)
    switch "$lines[1]"
        case ':files'
            __fish_complete_path "$current"
        case ':command*'
            set -l first (math (string replace ':command ' '' -- $lines[1]) + 1)
            set -l before
            test (count $words) -ge $first; and set before (string escape -- $words[$first..-1])
            complete -C (string join ' ' -- $before "$current")
        case '*'
            printf '%s\n' $lines
    end
end
complete -c drf -f -k -a '(__drf_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
#: The file, below a prefix such as /usr/local or ~/.local, in which each shell looks.
PLACES = {
    "bash": "share/bash-completion/completions/drf",
    "zsh": "share/zsh/site-functions/_drf",
    "fish": "share/fish/vendor_completions.d/drf.fish",
}
