// A library of hipBLASLt's name that has only one of its functions.
extern "C" int hipblasLtCreate(void**) { return 0; }
