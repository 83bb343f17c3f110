"""The tree of nodes that all processes of a cluster share: one small interface, two implementations.

store         the interface and its values
opening       opens the store of an address
embedded      the store of one machine: a session with an SQLite file
tree          the tree in that file
tree_file     permissions and rescue of that file
tree_watches  callbacks for the changes in that file
zookeeper     the store of several machines
"""
