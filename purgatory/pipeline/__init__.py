"""Learn from every operation, and run past one machine: PySpark over the journal and the trace.

    purgatory pipeline report   --journal DIR --out DIR     tables and a page for people
    purgatory pipeline replay   --trace DIR --out DIR       what becomes of every operation, in one batch
    purgatory pipeline stream   --in DIR --out DIR ...      the same as a streaming query, exactly once
    purgatory pipeline compact  --answers DIR               merge the small files of a Delta table of answers
    purgatory pipeline monitor  --journal DIR               windowed outcomes, live
    purgatory pipeline whatif   --trace|--journal DIR ...   try out timeouts, purge intervals, wheels
    purgatory pipeline verify                               library = stream = batch twin, on seeded workloads
    purgatory pipeline gen      --out DIR                   workloads, from Kafka-like to adversarial

`spark.dataSource.register(PurgatoryDataSource)` makes `format("purgatory")` readable in a session of your
own. Each command is a module here. What they are made of stands in rooms, in the order in which they may import:

    spark       its session, and folders wherever it reads and writes
    rows        which are there, which are sound, whose they are
    walks       kernels that sum up a task's rows, and the engines, local and Spark, that hand the rows out
    summaries   small tables, made on the driver of what the walks summed up
    pages       findings, plots, and the page they are put together in
    state       the stream's two state machines, and how what they remember is packed

All of it knows the journal's record format and nothing of the live purgatory.
"""
