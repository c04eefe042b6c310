// A shared library without a plug-in's entry point.
extern "C" int primus_something_else() { return 0; }
