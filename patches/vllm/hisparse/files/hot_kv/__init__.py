"""Hot KV: sparse-MLA decode from host memory through small device buffers, one for each request.

Nothing is imported here: the state and its oracle need torch alone, the kernels need Triton too.
"""
