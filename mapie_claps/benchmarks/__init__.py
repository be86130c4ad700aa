"""Benchmarks, run as ``python -m mapie_claps.benchmarks COMMAND``.

``peers`` compares CLAPS with what a user would pick instead; see
:mod:`mapie_claps.benchmarks.peers`. They need ``pip install "mapie-claps[bench]"``.
``python -m mapie_claps.benchmarks.large`` is about data larger than memory.
"""
