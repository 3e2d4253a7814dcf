create schema if not exists threadlog
