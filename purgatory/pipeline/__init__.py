"""Learn from recorded operations: reports, replays and what-ifs over journals and traces, and a stream on Spark.

    purgatory pipeline report   --journal DIR --out DIR     tables and a page for people
    purgatory pipeline replay   --trace DIR --out DIR       the outcome of every operation, in one batch
    purgatory pipeline stream   --in DIR --out DIR ...      the same as a streaming query, exactly once
    purgatory pipeline compact  --answers DIR               merge the small files of a Delta table of answers
    purgatory pipeline monitor  --journal DIR               windowed outcomes, live
    purgatory pipeline whatif   --trace|--journal DIR ...   try other timeouts, purge intervals, wheels and shards

``spark.dataSource.register(PurgatoryDataSource)`` adds ``format("purgatory")`` to a session of your own. Each command
is a module here. Their parts are in folders, which import only from those above them:

    _spark      the session, and folders wherever Spark reads and writes
    _rows       which rows are there, and which of them can be true
    _tables     each table as SQL, and the two engines that run it: DuckDB in this process, and Spark
    _summaries  small tables and choices, from what the SQL gives
    _pages      findings, plots, and the page
    _state      the stream's two state machines, and how their state is packed

The package depends on the journal's record format, not on the live purgatory.
"""
