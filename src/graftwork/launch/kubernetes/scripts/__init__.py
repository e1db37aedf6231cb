"""What runs in the init containers of a pod, as it is: each file standard library only, Python 3.8 and newer."""
