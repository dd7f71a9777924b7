"""The arithmetic of a step behind one small interface, with a back end per kind of device."""
