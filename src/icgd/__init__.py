"""icgd compiles a training run into the weights of a transformer and proves how close it comes."""
