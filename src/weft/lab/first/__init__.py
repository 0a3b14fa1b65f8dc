"""first: what first calls take, `weft bench --first-calls`.

In: rows of the benchmark and small models. Out: seconds of the first call with weft, Inductor and `backend="eager"`, each in new
processes, with empty caches and warm ones; and where weft's went.
"""
