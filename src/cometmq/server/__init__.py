"""What broker, name server and controller share: who may do what, and files of tables."""
