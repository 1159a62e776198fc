"""Problems of mathematics with long worked answers: GSM8K, GSM-symbolic and MATH."""
