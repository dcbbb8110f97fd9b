-- The meta block of a trioserve frame: TLVs. Loaded by trioserve.lua, which owns the fields and expert items.

return function(tables, f, e)
local TAGS, DTYPES = tables.TAGS, tables.DTYPES
-- ---------------------------------------------------------------------------------------------------- meta
local function tensor(value, tree)
  if value:len() < 16 then
    tree:add_tvb_expert_info(e.malformed, value, "TENSOR shorter than its fixed part")
    return ""
  end
  local code, ndim, index = value(0, 1):uint(), value(1, 1):uint(), value(2, 2):le_uint()
  tree:add(f.tensor_dtype, value(0, 1))
  tree:add(f.tensor_ndim, value(1, 1))
  tree:add_le(f.tensor_index, value(2, 2))
  tree:add_le(f.tensor_flags, value(4, 4))
  tree:add_le(f.tensor_nbytes, value(8, 8))
  if value:len() < 16 + 4 * ndim then
    tree:add_tvb_expert_info(e.malformed, value, "TENSOR shorter than its dimensions")
    return ""
  end
  local dims = {}
  for axis = 0, ndim - 1 do
    tree:add_le(f.tensor_dim, value(16 + 4 * axis, 4))
    dims[#dims + 1] = tostring(value(16 + 4 * axis, 4):le_uint())
  end
  if index == 0xffff and value:len() > 16 + 4 * ndim then
    tree:add(f.tensor_name, value(16 + 4 * ndim))
  end
  return string.format("%s[%s]", DTYPES[code] or "?", table.concat(dims, ","))
end

local TEXT_TAGS = { MODEL = true, TENANT = true, TRACEPARENT = true, PARAMS = true, CLIENT = true, ERRMSG = true }
local NUMBER_TAGS = { VERSION = true, SEQ_ID = true }

-- Adds one TLV and returns what is worth a word on the summary line: its tag's name and its value as text.
local function tlv_value(name, value, tree)
  if TEXT_TAGS[name] then
    local text = value:string(ENC_UTF_8)
    tree:add(f.tlv_text, value, text)
    return text
  end
  if NUMBER_TAGS[name] and (value:len() == 4 or value:len() == 8) then
    tree:add_le(f.tlv_number, value)
    return tostring(value:len() == 4 and value:le_uint() or value:le_uint64())
  end
  if name == "TENSOR" then return tensor(value, tree) end
  if name == "AUTH" then  -- a capture is passed around; the secret in it need not be shown on top
    tree:append_text(", not shown")
    return ""
  end
  tree:add(f.tlv_value, value)
  return ""
end

local function dissect_meta(tvb, tree)
  local found = {}
  local at, length = 0, tvb:len()
  while at < length do
    if length - at < 8 then
      tree:add_tvb_expert_info(e.malformed, tvb(at), "Meta ends inside the head of a TLV")
      return found
    end
    local number, nbytes = bit.band(tvb(at, 2):le_uint(), 0x7fff), tvb(at + 4, 4):le_uint()
    local name = TAGS[number] or string.format("tag %d", number)
    local padded = 8 + 8 * math.ceil(nbytes / 8)
    if at + padded > length then
      tree:add_tvb_expert_info(e.malformed, tvb(at), name .. " is longer than the meta")
      return found
    end
    local branch = tree:add(f.tlv, tvb(at, padded)):set_text(name)
    branch:add_le(f.tag, tvb(at, 2))
    branch:add_le(f.ignorable, tvb(at, 2))
    branch:add_le(f.tlv_flags, tvb(at + 2, 2))
    branch:add_le(f.tlv_length, tvb(at + 4, 4))
    if nbytes > 0 then
      local text = tlv_value(name, tvb(at + 8, nbytes):tvb():range(), branch)
      if text ~= "" then branch:append_text(": " .. text) end
      found[name] = found[name] or text
    end
    at = at + padded
  end
  return found
end


return dissect_meta
end
