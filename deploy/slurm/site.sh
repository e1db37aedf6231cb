# Read by node.sh on every node, before anything starts. An example: keep what your site needs.
# shellcheck shell=bash

# Programs and libraries of the engines.
#   module load rocm
#   source /shared/venvs/sglang/bin/activate

# The network that engines use among the nodes, if it is not the one of Slurm's launcher.
#   GRAFTWORK_HOST=$(ip -4 -o address show dev ib0 | awk '{ split($4, a, "/"); print a[1] }')
#   export GRAFTWORK_HOST

# Compiled kernels: a folder on the node that outlives the job. The default is in the temporary folder.
#   export GRAFTWORK_CACHE=/scratch/$USER/graftwork

# Pinned memory and many connections need more than the defaults.
ulimit -l unlimited 2>/dev/null || ulimit -l "$(ulimit -H -l)"
ulimit -n "$(ulimit -H -n)"
