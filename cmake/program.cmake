# The program `trireme` (TRIREME_PROGRAM): a script that starts the examples' programs, with completion, and a man page
# made of their --help.
include(GNUInstallDirs)
# The tests' installation of the library does not ask for it, since its programs may not have been built.
set(component COMPONENT program)
if(TRIREME_BUILD_TESTS)
  list(APPEND component EXCLUDE_FROM_ALL)
endif()
set(TRIREME_VERBS train:train_gpt train-mpi:train_gpt_mpi tokenize:tokenize export:export serve:serve
    sweep:strategy_sweep plan:on_paper inspect:inspect)

file(RELATIVE_PATH TRIREME_TO_LIBEXEC ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBEXECDIR}/trireme)
set(folder ${PROJECT_BINARY_DIR}/program)
configure_file(${PROJECT_SOURCE_DIR}/packaging/program/trireme ${folder}/bin/trireme @ONLY
               FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(programs "")
set(links "")
foreach(pair IN LISTS TRIREME_VERBS)
  string(REGEX MATCH "^(.+):(.+)$" matched ${pair})
  set(verb ${CMAKE_MATCH_1})
  set(target ${CMAKE_MATCH_2})
  if(TARGET ${target})
    list(APPEND programs ${target})
    list(APPEND links COMMAND ${CMAKE_COMMAND} -E create_symlink $<TARGET_FILE:${target}> ${folder}/libexec/trireme-${verb})
    install(PROGRAMS $<TARGET_FILE:${target}> DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/trireme RENAME trireme-${verb}
            ${component})
  else()
    message(STATUS "trireme: the program has no ${verb}, because ${target} needs a library that was not found")
  endif()
endforeach()

add_custom_command(OUTPUT ${folder}/trireme.1 DEPENDS ${programs} ${PROJECT_SOURCE_DIR}/packaging/program/man-page
                   VERBATIM COMMENT "Writing the man page of trireme"
  COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}/libexec
  ${links}
  COMMAND ${CMAKE_COMMAND} -E env TRIREME_LIBEXEC=${folder}/libexec sh ${PROJECT_SOURCE_DIR}/packaging/program/man-page
          ${folder}/bin/trireme > ${folder}/trireme.1)
add_custom_target(trireme_program ALL DEPENDS ${folder}/trireme.1)

install(PROGRAMS ${folder}/bin/trireme DESTINATION ${CMAKE_INSTALL_BINDIR} ${component})
install(FILES ${folder}/trireme.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 ${component})
install(FILES ${PROJECT_SOURCE_DIR}/packaging/program/trireme.bash RENAME trireme ${component}
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
