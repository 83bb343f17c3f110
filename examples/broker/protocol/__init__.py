"""The wire protocol and the format of record batches.

    errors       the error codes, and the exception that carries one
    wire         primitive types, and the compiler from declared messages to codecs
    messages     every message, by family of API
    apis         the table of APIs: keys, versions, messages
    records      record batches, format 2
    compression  decompression of batches
    message_set  formats 0 and 1, for old clients
    steps        long work in short steps

Pure functions and values. They may be called from any thread.
"""
