"""Running what was built: recipes, commands, ports, storage, Slurm, Kubernetes."""
