# Read by bash before a script with --signal=SIGNAL (BASH_ENV). As in Slurm, the signal is for what
# the script runs: its own shell goes on, and what it starts has the signal's usual effect.
trap : "$DRF_SPARED"
unset DRF_SPARED BASH_ENV
if [ -n "${DRF_BASH_ENV-}" ]; then
  export BASH_ENV=$DRF_BASH_ENV
  unset DRF_BASH_ENV
  [ ! -r "$BASH_ENV" ] || . "$BASH_ENV"
fi
