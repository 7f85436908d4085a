"""What a broker has to do with others: telling name servers what it has."""
