"""Plain PyTorch: one runnable script on device meshes."""
