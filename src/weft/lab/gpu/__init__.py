"""gpu: `weft bench --device cuda`, whose rows are compiled and timed in processes of their own, beside all peers."""
