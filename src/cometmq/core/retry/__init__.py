"""What happens to a message that a consumer did not take: another try, parking, dead letter."""
