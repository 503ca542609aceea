"""The target kafka: Apache Kafka with KRaft, brokers that are controllers as well."""
