# Writes a C++ file that embeds FILES as strings named k_<name>_<extension>, which HEADER declares in NAMESPACE.
set(text "#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n\n")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  string(REPLACE "." "_" name ${name})
  file(READ ${file} content)
  string(APPEND text "const std::string_view k_${name} = R\"~~~(${content})~~~\";\n\n")
endforeach()
file(WRITE ${OUTPUT} "${text}}  // namespace ${NAMESPACE}\n")
