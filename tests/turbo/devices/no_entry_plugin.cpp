// A shared library that is no plug-in.
extern "C" int primus_something_else() { return 0; }
