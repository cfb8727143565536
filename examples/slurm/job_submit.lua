-- Slurm's job_submit: the same check in slurmctld, which no user can leave out.
-- Copy it next to slurm.conf and set there: JobSubmitPlugins=lua
-- slurmctld waits for it with its locks held: prefer cli_filter.lua, and keep SECONDS small. It needs memcheck there.

local MEMCHECK = os.getenv("MEMCHECK_PROGRAM") or "memcheck"
local SECONDS = 5
local WITHOUT_MEMCHECK = "pass"    -- pass | refuse: where memcheck is not installed, or does not answer in time

local ASKS = { nodes = "min_nodes", gres = "tres_per_node", gpus = "tres_per_job", partition = "partition", constraint = "features" }

local function run(line)
  local pipe = io.popen(line .. " 2>&1; echo \"exit:$?\"", "r")
  if pipe == nil then return nil, "" end
  local text = pipe:read("*a") or ""
  pipe:close()
  return tonumber(text:match("exit:(%d+)%s*$")), (text:gsub("exit:%d+%s*$", ""))
end

function slurm_job_submit(job, partitions, uid)
  if job.script == nil or job.script == "" then return slurm.SUCCESS end
  local path = os.tmpname()
  local file = io.open(path, "w")
  if file == nil then return slurm.SUCCESS end
  file:write(job.script)
  file:close()
  local line = string.format("timeout %d '%s' submit --check-only --unread submit -- sbatch", SECONDS, MEMCHECK)
  for name, field in pairs(ASKS) do
    local value = job[field]
    if value ~= nil and value ~= "" and value ~= slurm.NO_VAL then
      value = tostring(value):gsub("gres:", ""):gsub("[^%w.:,_-]", "")
      line = line .. " --" .. name .. "='" .. value .. "'"
    end
  end
  local code, text = run(line .. " '" .. path .. "'")
  os.remove(path)
  if code == 1 then
    slurm.log_user("%s", text)
    return slurm.ERROR
  end
  if code ~= 0 then
    slurm.log_info("memcheck ended with %s, and the job of user %d is not checked", tostring(code), uid)
    return WITHOUT_MEMCHECK == "refuse" and slurm.ERROR or slurm.SUCCESS
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, current, partitions, uid)
  return slurm.SUCCESS
end
