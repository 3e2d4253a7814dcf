"""`threadlog import` uploads recorded sessions, has them imported and shows the progress."""
