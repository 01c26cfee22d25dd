# The Debian package: deploy/package.sh builds it.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # it holds the two programs, whatever else is not built
set(package_sources ${PROJECT_SOURCE_DIR}/deploy/debian)

# Man pages and completions, made from the programs' --help.
add_custom_target(lssar_manual
  COMMAND ${CMAKE_COMMAND} -E env PYTHONPATH=${PROJECT_SOURCE_DIR}/clients/python
          /usr/bin/python3 -B ${package_sources}/manual.py ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
          ${CMAKE_BINARY_DIR}/manual
  DEPENDS lssar-server lssar_program)

install(TARGETS lssar-server lssar_program RUNTIME DESTINATION bin)
install(DIRECTORY ${CMAKE_BINARY_DIR}/manual/man1 DESTINATION share/man)
install(DIRECTORY ${CMAKE_BINARY_DIR}/manual/bash-completion/
  DESTINATION share/bash-completion/completions)
install(FILES ${package_sources}/lssar-server.service DESTINATION lib/systemd/system)
install(FILES ${package_sources}/lssar-server.conf DESTINATION lib/sysusers.d)
install(FILES ${package_sources}/server.toml DESTINATION /etc/lssar)
if(LSSAR_WITH_CUDA STREQUAL "ON")  # deploy/package.sh --cuda
  install(FILES ${package_sources}/cuda.conf DESTINATION lib/systemd/system/lssar-server.service.d)
endif()
install(FILES LICENSE DESTINATION share/doc/lssar RENAME copyright)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lssar)
if(LSSAR_WITH_CUDA STREQUAL "ON")  # deploy/package.sh --cuda
  set(CPACK_PACKAGE_NAME lssar-cuda)
  set(CPACK_DEBIAN_PACKAGE_PROVIDES lssar)
  set(CPACK_DEBIAN_PACKAGE_CONFLICTS lssar)
  set(CPACK_DEBIAN_PACKAGE_REPLACES lssar)
endif()
set(CPACK_PACKAGE_CONTACT "lssar")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Inference server for GPT models with LSSAR attention")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "python3-pip")  # import, figure, ... are Python's
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${package_sources}/conffiles ${package_sources}/postinst
    ${package_sources}/prerm ${package_sources}/postrm)
include(CPack)
