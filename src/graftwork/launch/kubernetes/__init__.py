"""A deployment as Kubernetes manifests: `cluster` is what the cluster has, `manifests` renders, `pod` is one node."""
