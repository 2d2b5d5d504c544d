"""A Spark session that finds a Java, or says how to get one."""
