"""What any training needs and no party is in: networks, optimisers, views of rows, metrics."""
