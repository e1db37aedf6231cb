"""Where source comes from: a folder, a wheel, a wheel read by HTTP ranges."""
