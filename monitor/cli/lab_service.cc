#include "monitor/cli/lab_service.h"

#include "switch-config/policy/policy.h"
#include "switch-config/render/linux/linux.h"
#include "switch-config/render/render.h"

namespace tensorlane::cli {

namespace {

// The fabric with the lab's devices for ports, whatever the file calls them.
fabric::Fabric with_devices(fabric::Fabric fabric, const LabPlan& plan) {
  for (fabric::Switch& sw : fabric.switches) sw.ports.clear();
  for (std::size_t i = 0; i < fabric.links.size(); ++i) {
    const Cable& cable = plan.cables[i];
    fabric.links[i].from_port = plan.nodes[cable.node_a].ports[cable.port_a].device;
    fabric.links[i].to_port = plan.nodes[cable.node_b].ports[cable.port_b].device;
  }
  return fabric;
}

}  // namespace

Result<std::vector<std::string>> service_scripts(const fabric::Fabric& fabric, const LabPlan& plan, bool red) {
  const fabric::Fabric renamed = with_devices(fabric, plan);
  std::vector<std::string> scripts;
  for (const bool hosts : {true, false}) {
    const switches::Selection selection{.hosts = hosts, .nos = {}, .software = true};
    TL_ASSIGN_OR_RETURN(std::vector<switches::DeviceQos> devices, switches::devices_of(renamed, selection));
    for (switches::DeviceQos& device : devices) {
      if (!red) switches::leave_out_ecn(device);
      TL_ASSIGN_OR_RETURN(const std::vector<switches::RenderedFile> files, switches::render_linux(device));
      scripts.push_back(files.front().text);
    }
  }
  return scripts;
}

}  // namespace tensorlane::cli
