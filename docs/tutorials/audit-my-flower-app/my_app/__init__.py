"""my-app: a Flower app in the structure of Flower's own PyTorch template."""
