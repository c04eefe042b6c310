// A shared library without the entry point of a plug-in.
extern "C" int primus_something_else() { return 0; }
