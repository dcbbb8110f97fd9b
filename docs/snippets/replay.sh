trioserve replay records/double-1.npz --policy adaptive --policy greedy --policy fixed:2
