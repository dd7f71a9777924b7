"""Messages of the token stream (protobuf), with the code that is generated from them."""
