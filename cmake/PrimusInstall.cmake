# The files that `cmake --install` installs, and the CPack packages: a .deb and a tarball. They are
# relocatable: the program finds presets and plug-ins relative to itself (../share/primus/presets,
# ../lib/primus).
#
#   cmake --install build --prefix /opt/primus
#   cpack --config build/CPackConfig.cmake        primus_VERSION_amd64.deb, primus-VERSION-Linux-x86_64.tar.gz
include(GNUInstallDirs)

install(TARGETS primus RUNTIME DESTINATION bin)
install(PROGRAMS ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/primus-cli DESTINATION bin)  # a symbolic link, installed as a link
# GPU plug-ins that scripts/build-gpu.sh has built.
install(DIRECTORY ${CMAKE_BINARY_DIR}/lib/primus/ DESTINATION lib/primus OPTIONAL
        USE_SOURCE_PERMISSIONS FILES_MATCHING PATTERN "libprimus_*.so")
install(DIRECTORY presets/ DESTINATION share/primus/presets)
install(DIRECTORY examples/ DESTINATION share/primus/examples)
install(PROGRAMS scripts/wandb_offline.py DESTINATION share/primus/scripts)
install(FILES README.md DESTINATION share/doc/primus)
install(FILES LICENSE DESTINATION share/doc/primus RENAME copyright)
# In a separate folder, as in the sources, so that the links in README.md work and docs/README.md does not replace
# README.md.
install(DIRECTORY docs DESTINATION share/doc/primus FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")

# The program generates its own manual and completion. This happens at installation, so an ordinary build needs no step
# for it.
set(generated ${CMAKE_BINARY_DIR}/packaging)
install(CODE "
  set(program \"$<TARGET_FILE:primus>\")
  file(REMOVE_RECURSE \"${generated}\")
  file(MAKE_DIRECTORY \"${generated}/completion\")
  execute_process(COMMAND \${program} man --output ${generated}/man OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB pages ${generated}/man/*.1)
  execute_process(COMMAND gzip -9 -n \${pages} COMMAND_ERROR_IS_FATAL ANY)
  foreach(shell bash zsh fish)
    execute_process(COMMAND \${program} completion \${shell} OUTPUT_FILE ${generated}/completion/\${shell}
                    COMMAND_ERROR_IS_FATAL ANY)
  endforeach()")
install(DIRECTORY ${generated}/man/ DESTINATION share/man/man1)
install(FILES ${generated}/completion/bash DESTINATION share/bash-completion/completions RENAME primus)
install(FILES ${generated}/completion/zsh DESTINATION share/zsh/vendor-completions RENAME _primus)
install(FILES ${generated}/completion/fish DESTINATION share/fish/vendor_completions.d RENAME primus.fish)

set(CPACK_PACKAGE_NAME primus)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "The Primus developers <primus@example.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains foundation models from one native program")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_FILE_NAME primus-${PROJECT_VERSION}-Linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# The dependencies are listed explicitly. The vendors' libraries, which plug-ins load at run time, are not Debian
# packages.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.36), libgcc-s1 (>= 12), libstdc++6 (>= 12)")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "One program that pre-trains language models, checks machines before that,
and benchmarks them. CPUs work out of the box; GPUs need a plug-in for CUDA or HIP in /usr/lib/primus.")
if(PRIMUS_CPU_KERNELS STREQUAL "all")
  include(CPack)
else()
  # A package must run on every CPU.
  file(WRITE ${CMAKE_BINARY_DIR}/CPackConfig.cmake "message(FATAL_ERROR \"This build has CPU kernels for ${PRIMUS_CPU_LEVELS} \
only, and a package serves all CPUs. Build again with scripts/build.sh, which sets -DPRIMUS_CPU_KERNELS=all.\")\n")
endif()
