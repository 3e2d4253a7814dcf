"""The log on Apache Kafka, through aiokafka, which nothing outside of this package imports."""
