"""The artifact folder: manifest, signatures, archive, session, report, exports. May import program to verification."""
