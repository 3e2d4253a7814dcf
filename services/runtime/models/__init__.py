"""Language models behind one port: those of providers, a scripted one, and who may call one next."""
