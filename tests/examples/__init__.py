"""The examples of one's own training, run as their files say, through the whole product."""
