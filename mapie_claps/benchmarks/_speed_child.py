"""A measurement of ``speed`` in a process of its own, started by the command.

``python -m mapie_claps.benchmarks._speed_child '[MODULE, FUNCTION, THREADS, PARAMS]'``
prints as JSON what the function returns.
"""

import json
import sys
from importlib import import_module

import torch

if __name__ == "__main__":
    module, name, threads, params = json.loads(sys.argv[1])
    torch.set_num_threads(threads)
    found = getattr(import_module(module), name)(**params)
    sys.stdout.write(json.dumps(found) + "\n")
