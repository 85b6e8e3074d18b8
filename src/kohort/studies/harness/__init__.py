"""What every study shares: its depth, its runs, its result tables and its charts.

session.py   `Depth` (quick or full), `Session` (depth, output folder, progress, runs) and the JSON object of a study
found.py     `Found` (a measured figure beside the paper's), `ResultTable` and `Part`
runs.py      `Runs`: plans over seeds, in parallel processes, each run made once
kept.py      finished runs in a file, so that a study can be resumed
validation.py  the rows that settings are chosen on
parallel.py  jobs in parallel processes
charts.py    line charts, bars, ranges and scatter plots as SVG files
"""
