"""What runs on a node of a job. Shipped with the job as it is: standard library only, Python 3.8 and newer."""
