// A library with the name of hipBLASLt that has only one of hipBLASLt's functions.
extern "C" int hipblasLtCreate(void**) { return 0; }
