# cmake -DLIKE=... -DFORM=... -DMACRO=... -DSOURCES=... -DOUTPUT=... -P SourceList.cmake: of the sources' lines that match the
# regular expression LIKE, in their order, a line MACRO(name) each, where the name is the group of FORM. A line like it in
# another form is an error. See primus_source_list.
set(lines "")
foreach(source ${SOURCES})
  file(STRINGS ${source} definitions REGEX "${LIKE}")
  foreach(definition ${definitions})
    if(NOT definition MATCHES "^${FORM}")
      message(FATAL_ERROR "${source}: this line is not of the form ${FORM}\n${definition}")
    endif()
    string(APPEND lines "${MACRO}(${CMAKE_MATCH_1})\n")
  endforeach()
endforeach()
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
# Who includes the list is compiled anew only where it has changed.
if(NOT lines STREQUAL before)
  file(WRITE ${OUTPUT} "${lines}")
endif()
