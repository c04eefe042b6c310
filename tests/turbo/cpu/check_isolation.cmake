# Fails if an object file of kernels defines a global or weak symbol other than the register functions of its
# own level.
foreach(object ${OBJECTS})
  execute_process(COMMAND ${NM} --defined-only --extern-only ${object} OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "\n$" "" symbols "${symbols}")
  string(REPLACE "\n" ";" symbols "${symbols}")
  if(NOT symbols)
    message(FATAL_ERROR "${object} defines no symbols at all")
  endif()
  foreach(symbol ${symbols})
    if(NOT symbol MATCHES " T _ZN6primus5turbo6isa_v[234][0-9]+register_")
      message(FATAL_ERROR "${object} makes a symbol visible that others could link by accident: ${symbol}")
    endif()
  endforeach()
endforeach()
