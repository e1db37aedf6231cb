"""The OCI image format: descriptors, manifests and layouts."""
