// What the fabric file asks of a device, in the form in which its running configuration is read.
#pragma once

#include "common/base/status.h"
#include "switch-config/diff/diff.h"
#include "switch-config/model/device_qos.h"

namespace tensorlane::diff {

// Of a switch: our rendering in the language of `running`, in the buffer model that it runs, read by the parser that
// read it. Of a host: what apply.sh sets on the ports of `running`, as far as its tool printed it. What the
// running configuration cannot say is left out. InvalidArgument for what the language cannot express.
Result<lint::Device> wanted(const switches::DeviceQos& device, const lint::Device& running);

// The classes by the numbers that they have in `wanted`.
ClassNames class_names(const switches::DeviceQos& device, const lint::Device& wanted);

}  // namespace tensorlane::diff
