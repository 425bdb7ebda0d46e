/* How a script's text is handed to its interpreter: as scripts.py, which says why. */

/* How to run a text: the path and the arguments to execute, or NULL to execute the file in memory;
 * and what stands after its first line, of so many bytes, if anything does. */
struct script {
	const char *text, *path;
	size_t length, head;
	char **words;
	const char *inserted, *name;
	long fd;
};

enum { SHELL, PYTHON, NODE, PERL };
enum { MOST_WORDS = 16 };
/* MFD_EXEC, which not all headers have, nor kernels before 6.3. Where vm.memfd_noexec is 2 it is refused,
 * and only the scripts run that their interpreters read. */
enum { EXECUTABLE = 0x10 };

static const char *last_part(const char *path)
{
	const char *part = path;

	for (; *path; path++)
		if (*path == '/')
			part = path + 1;
	return part;
}

static int is_plain(const char *word)
{
	for (; *word; word++)
		if (!((*word >= 'a' && *word <= 'z') || (*word >= 'A' && *word <= 'Z') ||
		      (*word >= '-' && *word <= '9') || *word == '_' || *word == '+'))
			return 0;
	return 1;
}

/* The kind of interpreter; -1 for another. */
static int kind_of(const char *name)
{
	static const struct {
		const char *name;
		int kind;
	} exact[] = {{"sh", SHELL}, {"bash", SHELL}, {"dash", SHELL}, {"ash", SHELL},
		     {"node", NODE}, {"nodejs", NODE}, {"python", PYTHON}, {"pypy", PYTHON},
		     {"perl", PERL}};
	size_t length = strlen(name);
	char *stem = take(length + 1);

	memcpy(stem, name, length + 1);
	while (length && ((stem[length - 1] >= '0' && stem[length - 1] <= '9') || stem[length - 1] == '.'))
		stem[--length] = '\0';
	for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
		if (strcmp(stem, exact[i].name) == 0)
			return exact[i].kind;
	return -1;
}

static int is_flags(const char *word, const char *known)
{
	if (*word != '-' || !word[1])
		return 0;
	for (word++; *word; word++)
		if (!strchr(known, *word))
			return 0;
	return 1;
}

static const char *drf_script(char **env)
{
	for (; *env; env++)
		if (has_name((char *[]){*env, NULL}, "DRF_SCRIPT="))
			return strchr(*env, '=') + 1;
	return NULL;
}

static struct script script_of(const struct plan *plan, const char *text, size_t length,
			       const char *name)
{
	static const char *const known[] = {"abefhilmnprtuvxBCEHPT", "bBdEIOPRqsSuvx", ""};
	struct script found = {.text = text, .length = length, .name = name};
	char *line, *interpreter, *option, *words[MOST_WORDS + 1], **at;
	size_t count = 0, start = 2, end = 0;
	int kind;

	if (!found.name || !*found.name)
		return found;
	at = take(7 * sizeof *at);
	if (length < 2 || text[0] != '#' || text[1] != '!') {
		found.path = "/bin/sh";
		found.words = at;
		at[0] = "sh", at[1] = "-c", at[2] = plan->programs[SHELL], at[3] = NULL;
		return found;
	}
	while (end < length && text[end] != '\n')
		end++;
	found.head = end;
	line = take(end + 1);
	memcpy(line, text, end);
	line[end] = '\0';
	if (strlen(line) < end)
		return found;
	while (end > start && (line[end - 1] == ' ' || line[end - 1] == '\t'))
		line[--end] = '\0';
	while (line[start] == ' ' || line[start] == '\t')
		start++;
	interpreter = option = line + start;
	while (*option && *option != ' ' && *option != '\t')
		option++;
	if (*option)
		*option++ = '\0';
	while (*option == ' ' || *option == '\t')
		option++;
	words[count++] = interpreter;
	if (strcmp(last_part(interpreter), "env") == 0) {
		size_t size = strlen(option);
		char *part = take(size + 1);

		memcpy(part, option, size + 1);
		count = 0;
		if (part[0] == '-' && part[1] == 'S' && part[2] == ' ') {
			part += 3;
			for (char *next = part; *part; part = next) {
				while (*next && *next != ' ')
					next++;
				if (*next)
					*next++ = '\0';
				if (*part && count == MOST_WORDS)
					return found;
				if (*part)
					words[count++] = part;
			}
		} else if (*part) {
			words[count++] = part;
		}
	} else if (*option) {
		words[count++] = option;
	}
	for (size_t i = 0; i < count; i++)
		if (!*words[i] || !is_plain(words[i]))
			return found;
	if (count == 0)
		return found;
	kind = kind_of(last_part(words[0]));
	if (kind == PERL) {
		if (found.head < length && !strchr(found.name, '"') && !strchr(found.name, '\n'))
			found.inserted = plan->programs[PERL];
		return found;
	}
	if (kind < 0)
		return found;
	for (size_t i = 1; i < count; i++)
		if (!is_flags(words[i], known[kind]))
			return found;
	found.path = interpreter;
	found.words = at;
	*at++ = interpreter;
	if (*option)
		*at++ = option;
	*at++ = kind == NODE ? "-e" : "-c";
	*at++ = plan->programs[kind];
	*at = NULL;
	return found;
}

static void write_all(long fd, const char *text, size_t length)
{
	for (size_t done = 0; done < length;)
		done += (size_t)must(call(write, fd, text + done, length - done), "setting", "");
}

/* Open after exec, too: the interpreter opens the script by the name of this descriptor. */
static void write_script(struct script *script)
{
	size_t head = script->inserted ? script->head + 1 : 0;

	script->fd = call(memfd_create, "script", EXECUTABLE);
	if (script->fd < 0)
		script->fd = must(call(memfd_create, "script", 0), "setting", "");
	write_all(script->fd, script->text, head);
	if (script->inserted) {
		write_all(script->fd, script->inserted, strlen(script->inserted));
		write_all(script->fd, script->name, strlen(script->name));
		write_all(script->fd, "\"\n", 2);
	}
	write_all(script->fd, script->text + head, script->length - head);
}

/* The program with the number of the descriptor in place of each mark. */
static char *with_number(const char *program, long fd)
{
	char digits[24], *number = decimal((unsigned long)fd, digits + sizeof digits), *made, *to;
	size_t marks = 0;

	for (const char *each = program; *each; each++)
		marks += *each == '~';
	made = to = take(strlen(program) + marks * sizeof digits + 1);
	for (; *program; program++) {
		if (*program != '~') {
			*to++ = *program;
			continue;
		}
		memcpy(to, number, strlen(number));
		to += strlen(number);
	}
	*to = '\0';
	return made;
}

/* Run the script from a file in memory, so that it runs as it was submitted. */
_Noreturn static void execute_script(const struct script *script, char **argv, char **env)
{
	size_t count = script->words ? count_of(script->words) : 0;
	char path[40], **words = take((count_of(argv) + count + 3) * sizeof *words);

	name_descriptor(path, script->fd);
	if (script->words) {
		memcpy(words, script->words, count * sizeof *words);
		words[count - 1] = with_number(words[count - 1], script->fd);
		words[count] = (char *)script->name;
		memcpy(words + count + 1, argv + 1, count_of(argv) * sizeof *words);
		fail("script", call(execve, script->path, words, env), argv[0]);
	}
	if (script->length >= 2 && script->text[0] == '#' && script->text[1] == '!')
		fail("script", call(execve, path, argv, env), argv[0]);
	words[0] = "sh";
	words[1] = path;
	memcpy(words + 2, argv + 1, count_of(argv) * sizeof *words);
	fail("script", call(execve, "/bin/sh", words, env), argv[0]);
}
