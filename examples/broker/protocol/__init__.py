"""The protocol: what is on the wire and in a record batch, and nothing of what is done with it.

    errors       the codes, and the exception that carries one
    wire         primitives, and the compiler from declared messages to codecs
    messages     every message, by the family of its API
    apis         the table of APIs: keys, versions, the two messages of each
    records      record batches, format 2
    message_set  the formats before, for old clients

Pure functions and values; call them from anywhere.
"""
